"""Typed structs of the Kubernetes objects that Joulie reads or writes, with only the fields that it needs.

Decoding ignores unknown fields. Encoding omits unset fields, so that server-side apply owns exactly the fields that a
program sets. Decoding does not validate: bounds and enumerations are in the CRDs, where the API server enforces them,
because one object stored before a schema was tightened must not break a list of five thousand.
"""
