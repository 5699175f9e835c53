"""Random schedules of calls on an engine and its sessions, against clients that misbehave, with an oracle.

plan        what is done: options and steps, drawn from a seed
record      what was done, and what came of it
clients     sockets that read slowly, stop reading, disappear, all in one thread
run         does it: actors in threads and on a loop, whoever takes the events, the end
oracle      what is wrong with a record
campaign    one schedule after the other; what fails is made small
"""
