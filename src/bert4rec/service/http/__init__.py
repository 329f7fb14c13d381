"""HTTP/1.1: messages, connections, sockets and processes. Knows nothing of what is served.

messages     requests and responses
connection   one connection, read by httptools
connections  all connections of a process, and the bounds on them
listening    addresses, unix sockets, certificates
server       one process: start, signals, how it ends
workers      several processes behind one address
"""
