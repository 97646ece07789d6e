"""The systems that are measured, one module each.

A module's `open_caller(place)` returns a `Caller`; if the system has two processes,
`open_callee(place)` returns a `Callee`.
"""
