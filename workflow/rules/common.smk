RESULTS = Path("results")
SLUG = study_slug(STUDY)
TABLES = RESULTS / "studies" / SLUG
REPORT = Path("reports") / SLUG
LOGS = RESULTS / "logs" / SLUG
# As `kvroad.analysis.cost_model.TABLES` has them, which takes pandas to import.
COST_TABLES = [
    "cost_model",
    "cost_points",
    "cost_break_even",
    "cost_held_out",
    "cost_curves",
]
PYTHON = sys.executable
MEASURE = Path(workflow.basedir) / "workflow" / "scripts" / "measure_launch.py"
# A composed study for the jobs; where it is, they know from the environment.
STUDY_FILE = study_path(RESULTS, os.environ["KVROAD_RUN_ID"], OVERRIDES).absolute()
os.environ[STUDY_VARIABLE] = str(STUDY_FILE)
LAUNCHES = {launch.id: launch for launch in DESIGN.launches}
RECEIPTS = [
    receipt_path(
        RESULTS,
        launch.id,
        next_attempt(RESULTS, [cell.id for cell in launch.cells], STUDY.retry),
    )
    for launch in DESIGN.launches
]


# On a cluster a launch runs on the node where its job lands. Those of a block are compared
# with each other: they are one job on one node, one after the other, as everywhere else.
IS_CLUSTER = CONNECTIONS[STUDY.host.connection].is_allocated_in_job


def slot_of(launch):
    """Return the resource of which a launch takes all there is."""
    places = [host.name for host in hosts_of(STUDY)]
    if IS_CLUSTER:
        return f"block_slot_{launch.block}"
    return f"host_slot_{places.index(launch.host)}"


# A host carries one launch at a time, whatever --cores says.
SLOT_OF = {launch.id: slot_of(launch) for launch in DESIGN.launches}
SLOTS = sorted(set(SLOT_OF.values()))
for slot in SLOTS:
    workflow.register_resource(slot, 1)


def takes(slot):
    """Return how much of a slot a launch takes: all or nothing."""
    return lambda wildcards: int(SLOT_OF.get(wildcards.launch, slot) == slot)


# Prefill and decode on two nodes of one allocation.
NODES = {"nodes": 2, "tasks": 2} if IS_CLUSTER and is_split(STUDY.host) else {}


def block_of(wildcards):
    """Return the group of jobs that a launch is submitted with."""
    launch = LAUNCHES.get(wildcards.launch)
    group = f"block-{launch.block if launch else 'unknown'}"
    # profiles/slurm speaks of all of them by one name.
    workflow.parent_groupids[group] = "block"
    return group


wildcard_constraints:
    attempt=r"\d+",


def cells_of(wildcards):
    """What a launch is made of; a change of it is the only reason to launch again."""
    launch = LAUNCHES.get(wildcards.launch)
    return {cell.id: cell.identity for cell in launch.cells} if launch else {}


PLACE_OF = {launch_id: place for place, launch_id in enumerate(LAUNCHES)}


def planned_priority(wildcards):
    """Earlier launches first; the order is balanced over arms."""
    return 1 + len(LAUNCHES) - PLACE_OF.get(wildcards.launch, 0)


try:
    TRACKING_MARKER = drop_stale_marker(TABLES, tracking_uri(STUDY))
except UserError as error:
    sys.exit(f"error: {error}")
