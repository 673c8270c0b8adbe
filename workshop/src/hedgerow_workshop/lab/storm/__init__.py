"""The hand-over storm: a topic that goes hot and cold all the time, and subscribers that follow it.

There are a mobile and a fixed node, and subscribers of four kinds; nothing may be lost, nothing come twice.
"""
