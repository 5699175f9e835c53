"""Running the Autobahn test suite: one concern in each module.

options     the command line
suite       the suite itself: its sets of cases, its installation, its server and its client
testees     what can be tested, by api: blocking, awaiting; libraries knows how each library is called
cases       one case after the other
verdicts    what came out against what is expected
errors      why a run may come to no result; limits of time
"""
