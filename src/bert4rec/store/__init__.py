"""What users did, kept: the store behind `POST /v1/events`, recommendations by user and `bert4rec store`.

events            an event, what a store promises, and which store an address names
sqlite_store      one file beside the service
sqlite_files      the care of that file: who may read it, whether it is sound, erasing, backups
postgres_store    a database that several machines share
feedback          of which model users got how many recommendations, and what these led to
hiding            items that are hidden, in the tables of both
transfer          histories of a dataset into a store, events of a store into a log
upkeep            what else an operator does: check, copy
"""
