"""Random schedules of calls on an engine and its sessions, against clients that misbehave, with an oracle.

plan: options and steps, drawn from a seed

record: the calls and their outcomes

clients: sockets that read slowly, stop reading, disappear, all in one thread

run: executes a plan: actors in threads and on a loop, the consumer of events, the end

oracle: finds errors in a record

campaign: one schedule after the other; failing ones are made small
"""
