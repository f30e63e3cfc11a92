"""Compares the behaviour of a real namespace with the embedded broker: the facts behind Twinbus.

    facts = await verify({"primary": namespace}, VerifyPlan(profile=AZURE_STANDARD))

Each check runs on the namespace and on a broker of the same tier in this process, and what both
answered is compared.
"""
