rule measure_launch:
    output:
        receipt=RESULTS / "launches" / "{launch}" / "attempt-{attempt}.json",
    log:
        RESULTS / "logs" / "launches" / "{launch}-{attempt}.log",
    priority: planned_priority
    resources:
        host_slot=1,
    params:
        cells=cells_of,
    message:
        "measuring {wildcards.launch}"
    script:
        "../scripts/measure_launch.py"
