rule measure_launch:
    output:
        receipt=RESULTS / "launches" / "{launch}" / "attempt-{attempt}.json",
    log:
        RESULTS / "logs" / "launches" / "{launch}-{attempt}.log",
    priority: planned_priority
    group:
        block_of if IS_CLUSTER else None
    resources:
        **{slot: takes(slot) for slot in SLOTS},
        **NODES,
    params:
        cells=cells_of,
    message:
        "measuring {wildcards.launch}"
    shell:
        "{PYTHON:q} {MEASURE:q} {wildcards.launch:q} {wildcards.attempt} {log:q}"
