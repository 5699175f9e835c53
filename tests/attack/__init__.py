"""Attacks on servers and on clients, each with honest ones beside: what an attacker can take from them is bounded.

Three processes take part: the attacked one (``serving``, ``engines``, ``calling``), the honest one (``honest``), and
the attacker (``attacker``), whose attacks are in ``opening``, ``encrypting``, ``talking``, ``knocking`` and, against
clients, ``hostile``. ``table`` says which attack meets whom, and what its bound is; ``measuring`` runs one.

From the command line, longer and as a table: ``PYTHONPATH=python:tests python -m attack --help``.
"""
