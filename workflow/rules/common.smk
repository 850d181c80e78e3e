RESULTS = Path("results")
SLUG = study_slug(STUDY)
TABLES = RESULTS / "studies" / SLUG
REPORT = Path("reports") / SLUG
LOGS = RESULTS / "logs" / SLUG
# As `kvroad.cost_model.TABLES` has them, which takes pandas to import.
COST_TABLES = [
    "cost_model",
    "cost_points",
    "cost_break_even",
    "cost_held_out",
    "cost_curves",
]
LAUNCHES = {launch.id: launch for launch in DESIGN.launches}
RECEIPTS = [
    receipt_path(
        RESULTS,
        launch.id,
        next_attempt(RESULTS, [cell.id for cell in launch.cells], STUDY.retry),
    )
    for launch in DESIGN.launches
]


# A host carries one launch at a time, whatever --cores says.
HOSTS = [host.name for host in hosts_of(STUDY)]
for place in range(len(HOSTS)):
    workflow.register_resource(f"host_slot_{place}", 1)


def slot_on(host):
    """Return a resource: 1 for a launch on this host, 0 for one on another."""

    def taken(wildcards):
        launch = LAUNCHES.get(wildcards.launch)
        return int(launch is None or launch.host == host)

    return taken


wildcard_constraints:
    attempt=r"\d+",


def cells_of(wildcards):
    """What a launch is made of; a change of it is the only reason to launch again."""
    launch = LAUNCHES.get(wildcards.launch)
    return {cell.id: cell.identity for cell in launch.cells} if launch else {}


def planned_priority(wildcards):
    """Earlier launches first; the order is balanced over arms."""
    place = {launch_id: i for i, launch_id in enumerate(LAUNCHES)}
    return 1 + len(LAUNCHES) - place.get(wildcards.launch, 0)


try:
    TRACKING_MARKER = drop_stale_marker(TABLES, tracking_uri(STUDY))
except UserError as error:
    sys.exit(f"error: {error}")
