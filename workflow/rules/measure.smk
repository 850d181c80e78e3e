rule measure_launch:
    output:
        receipt=RESULTS / "launches" / "{launch}" / "attempt-{attempt}.json",
    log:
        RESULTS / "logs" / "launches" / "{launch}-{attempt}.log",
    priority: planned_priority
    resources:
        **{f"host_slot_{place}": slot_on(host) for place, host in enumerate(HOSTS)},
    params:
        cells=cells_of,
    message:
        "measuring {wildcards.launch}"
    script:
        "../scripts/measure_launch.py"
