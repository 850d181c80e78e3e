"""The load on serving engines: it checks them, drives them, keeps what they and it say.

It travels to the host with the plan and stands alone there: standard library only.
"""
