"""The lake: Parquet by layer, table and day; what of it counts is what the manifests name.

    <lake>/bronze/deliveries/dt=2026-11-20/hours=00-24/run=7/part-….zstd.parquet
    <lake>/manifests/dt=2026-11-20.json

`places` (files and folders, on a path or in an object store) · `manifests` (what counts of a day) · `lakes` (days read
and kept by them) · `stages` (what a run makes, and does not count yet)
"""
