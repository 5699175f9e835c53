"""Attacks on servers and on clients beside honest traffic: the resources that an attacker can use are bounded.

Three processes take part: the attacked one (``serving``, ``engines``, ``calling``), the honest one (``honest``), and
the attacker (``attacker``), whose attacks are in ``opening``, ``encrypting``, ``talking``, ``knocking`` and, against
clients, ``hostile``. ``table`` lists attacks, targets and bounds; ``measuring`` runs one attack.

From the command line, longer and as a table: ``PYTHONPATH=python:tests python -m campaigns.attack --help``.
"""
