"""The Kubernetes objects that Joulie reads or writes, as typed structs with only the fields that it needs.

What a struct does not know is left out when decoding; what is not set is left out when encoding, so that server-side
apply owns exactly what a program sets. Readers are tolerant: bounds and enumerations stand in the CRDs, where the API
server enforces them, since one object stored before a schema was tightened must not stop a list of five thousand.
"""
