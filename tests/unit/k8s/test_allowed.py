"""The limits of an EdlJob: each way to more than that is refused by name, and can be allowed."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.errors import UsageError
from edl.common.settings import JobSettings
from edl.k8s import pods
from edl.k8s.allowed import Allowed, Installed, NotAllowed, check_pods
from edl.k8s.confined import TOKEN_DIR
from edl.k8s.job import templates, wanted

from .edljobs import SPEC, edljob


def pod(**fields):
    return {"podTemplate": {"spec": fields}}


def edl(**fields):
    return pod(containers=[{"name": "edl", **fields}])


def source(**kind):
    return {"volumes": [{"name": "v", **kind}]}


EVERYTHING = Installed(Allowed(fields=("*",)))
TOKEN = {"sources": [{"serviceAccountToken": {"path": "t"}}]}
# what is said, what the refusal names, what allows it
WAYS = [
    (source(secret={"secretName": "of-b"}), "spec.volumes.secret", {"secrets": ["of-b"]}),
    (source(configMap={"name": "of-b"}), "spec.volumes.configMap", {"configMaps": ["of-*"]}),
    (source(hostPath={"path": "/etc"}), "spec.volumes.hostPath", {"hostPaths": ["/etc"]}),
    (source(hostPath={"path": "/data/../etc"}), "(hostPaths: /etc)", {"hostPaths": ["/etc"]}),
    (source(hostPath={"path": "//etc/"}), "(hostPaths: /etc)", {"hostPaths": ["/etc"]}),
    (source(projected=TOKEN), "spec.volumes.projected", {"fields": ["spec.volumes.projected"]}),
    (source(csi={"driver": "d"}), "spec.volumes.csi.driver", {"fields": ["spec.volumes.csi"]}),
    (source(nfs={"server": "s"}), "spec.volumes.nfs.server", {"fields": ["spec.volumes.nfs*"]}),
    (source(downwardAPI={"items": []}), "spec.volumes.downwardAPI", {"fields": ["spec.volumes.*"]}),
    (source(ephemeral={}), "spec.volumes.ephemeral", {"fields": ["spec.volumes.*"]}),
    (
        {"worker": pod(**source(secret={"secretName": "of-b"}))},
        "spec.worker.podTemplate.spec.volumes.secret",
        {"secrets": ["*"]},
    ),
    (
        {"jobVolume": {"hostPath": {"path": "/x"}}},
        "spec.jobVolume.hostPath",
        {"hostPaths": ["/x"]},
    ),
    ({"jobVolume": {"secret": {"secretName": "s"}}}, "spec.jobVolume.secret", {"secrets": ["s"]}),
    ({"imagePullSecrets": [{"name": "of-b"}]}, "spec.imagePullSecrets", {"pullSecrets": ["of-b"]}),
    (
        {"settings": {**SPEC["settings"], "service_account": "edl-controller"}},
        "spec.settings.service_account",
        {"serviceAccounts": ["edl-controller"]},
    ),
    (
        {"worker": {"priorityClassName": "edl-master"}},
        "spec.worker.priorityClassName (priorityClasses: edl-master)",
        {"priorityClasses": ["edl-master"]},
    ),
    (
        {"master": {"priorityClassName": "system-node-critical"}},
        "spec.master.priorityClassName",
        {"priorityClasses": ["system-*"]},
    ),
    (
        {"ps": pod(priorityClassName="system-node-critical")},
        "spec.ps.podTemplate.spec.priorityClassName",
        {"priorityClasses": ["*"]},
    ),
    (
        {"worker": {"tolerations": [{"operator": "Exists"}]}},
        "spec.worker.tolerations (tolerations: without a key",
        {"tolerations": [""]},
    ),
    (
        {"ps": pod(tolerations=[{"key": "node-role.kubernetes.io/control-plane"}])},
        "(tolerations: node-role.kubernetes.io/control-plane)",
        {"tolerations": ["node-role.kubernetes.io/control-plane"]},
    ),
    (
        {"worker": {"podTemplate": {"metadata": {"labels": {"app": "shop"}}}}},
        "spec.worker.podTemplate.metadata.labels (labels: app)",
        {"labels": ["app"]},
    ),
    (
        {"ps": {"podTemplate": {"metadata": {"annotations": {"iam.amazonaws.com/role": "a"}}}}},
        "(annotations: iam.amazonaws.com/role)",
        {"annotations": ["iam.amazonaws.com/*"]},
    ),
    (
        {"ps": {"podTemplate": {"metadata": {"finalizers": ["a/b"]}}}},
        "spec.ps.podTemplate.metadata.finalizers",
        {"fields": ["spec.ps.podTemplate.metadata.finalizers"]},
    ),
    (
        {"volumeMounts": [{"name": "v", "mountPath": "/opt/edl"}], **source(emptyDir={})},
        "spec.volumeMounts (mounts: /opt/edl)",
        {"mounts": ["/opt/*"]},
    ),
    (
        {"volumeMounts": [{"name": "v", "mountPath": "//etc/edl/"}], **source(emptyDir={})},
        "spec.volumeMounts (mounts: /etc/edl)",
        {"mounts": ["/etc/edl"]},
    ),
    (
        {
            "worker": edl(
                env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
            )
        },
        "env.valueFrom.secretKeyRef (secrets: s)",
        {"secrets": ["s"]},
    ),
    (
        {"ps": edl(env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c"}}}])},
        "env.valueFrom.configMapKeyRef (configMaps: c)",
        {"configMaps": ["c"]},
    ),
    (
        {"ps": edl(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}])},
        "env.valueFrom.fieldRef.fieldPath",
        {"fields": ["spec.ps.*.fieldRef"]},
    ),
    (
        {"worker": edl(envFrom=[{"secretRef": {"name": "s"}}])},
        "envFrom.secretRef",
        {"secrets": ["s"]},
    ),
    (
        {"ps": edl(envFrom=[{"prefix": "A", "configMapRef": {"name": "c"}}])},
        "envFrom.configMapRef (configMaps: c)",
        {"configMaps": ["c"]},
    ),
]
# fields of pods and containers that are allowed by their own path only
FIELDS = [
    ("hostNetwork", True),
    ("hostPID", True),
    ("hostIPC", True),
    ("hostUsers", True),
    ("hostAliases", [{"ip": "1.1.1.1"}]),
    ("nodeName", "n"),
    ("serviceAccountName", "edl-controller"),
    ("serviceAccount", "edl-controller"),
    ("automountServiceAccountToken", True),
    ("shareProcessNamespace", True),
    ("securityContext", {"runAsUser": 0}),
    ("securityContext", {"fsGroup": 0}),
    ("securityContext", {}),
    ("runtimeClassName", "kata"),
    ("schedulerName", "mine"),
    ("priority", 9),
    ("preemptionPolicy", "Never"),
    ("initContainers", [{"name": "edl", "image": "i"}]),
    ("ephemeralContainers", [{"name": "edl"}]),
    ("restartPolicy", "Always"),
    ("dnsConfig", {"nameservers": ["1.1.1.1"]}),
    ("resourceClaims", [{"name": "r"}]),
    ("affinity", {"podAntiAffinity": {"a": 1}}),
    ("whatComesNext", 1),
    ("containers", [{"name": "other", "image": "i"}]),
    ("containers", [{"image": "i"}]),
]
OF_CONTAINER = [
    ("securityContext", {"privileged": True}),
    ("securityContext", {"capabilities": {"add": ["SYS_ADMIN"]}}),
    ("securityContext", {"runAsUser": 0}),
    ("securityContext", {"procMount": "Unmasked"}),
    ("ports", [{"containerPort": 80, "hostPort": 80}]),
    ("image", "another"),
    ("command", ["sh"]),
    ("args", ["-c"]),
    ("lifecycle", {"preStop": {"exec": {"command": ["sh"]}}}),
    ("livenessProbe", {"httpGet": {"host": "10.0.0.1", "port": 80}}),
    ("volumeDevices", [{"name": "v", "devicePath": "/dev/sda"}]),
    ("volumeMounts", [{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]),
    ("resources", {"claims": [{"name": "r"}]}),
]
OF_MASTER = [
    ("env", [{"name": "PYTHONPATH", "value": "/data"}]),
    ("envFrom", [{"configMapRef": {"name": "c"}}]),
    ("workingDir", "/data"),
]
WAYS += [
    ({role: pod(**{name: value})}, f"spec.{role}.podTemplate.spec.{name}", None)
    for role in ("master", "worker")
    for name, value in FIELDS
]
WAYS += [
    ({role: edl(**{name: value})}, f"spec.{role}.podTemplate.spec.containers.{name}", None)
    for role, fields in (("ps", OF_CONTAINER), ("master", [*OF_CONTAINER, *OF_MASTER]))
    for name, value in fields
]


@pytest.mark.parametrize(("spec", "named", "allows"), WAYS, ids=lambda each: str(each)[:60])
def test_what_would_give_more_than_an_edljob_is_refused_by_name_until_it_is_allowed(
    spec, named, allows
):
    job = edljob(**spec)

    with pytest.raises(NotAllowed) as refused:
        wanted(job)
    assert named in str(refused.value)
    if allows is not None:
        wanted(job, installed=Installed(Allowed.of(allows, "here")))
        wanted(job, installed=Installed(by_namespace={"default": Allowed.of(allows, "here")}))
    with pytest.raises(NotAllowed):  # of another namespace
        wanted(job, installed=Installed(by_namespace={"other": Allowed.of(allows or {}, "here")}))


HARMLESS = {
    "volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "own", "emptyDir": {"medium": "Memory"}},
    ],
    "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "a", "readOnly": True}],
    "master": {"priorityClassName": "edl-master", "nodeSelector": {"a": "b"}},
    "worker": {
        "priorityClassName": "edl-low",
        "tolerations": [{"key": "cloud.example/spot", "operator": "Exists"}],
        "podTemplate": {
            "metadata": {"labels": {"edl.dev/role": "master"}},
            "spec": {
                "nodeSelector": {"pool": "spot"},
                "affinity": {"nodeAffinity": {}},
                "containers": [
                    {
                        "name": "edl",
                        "workingDir": "/w",
                        "env": [{"name": "A", "value": "1"}],
                        "resources": {"limits": {"nvidia.com/gpu": 1}},
                        "volumeMounts": [{"name": "own", "mountPath": "/root/cache"}],
                    }
                ],
            },
        },
    },
}


def test_what_harms_nobody_is_allowed():
    assert {"master", "ps", "worker"} <= wanted(edljob(**copy.deepcopy(HARMLESS))).templates.keys()


def test_claims_are_everybodys_until_they_are_named():
    job = edljob(**source(persistentVolumeClaim={"claimName": "of-b"}), jobVolume=None)

    wanted(job)
    with pytest.raises(NotAllowed, match=r"\(claims: of-b\)"):
        wanted(job, installed=Installed(Allowed(claims=("of-a",))))


def test_all_that_is_not_allowed_is_told_at_once():
    job = edljob(worker=pod(hostNetwork=True, hostPID=True), imagePullSecrets=[{"name": "s"}])

    with pytest.raises(NotAllowed) as refused:
        wanted(job)

    assert all(name in str(refused.value) for name in ("hostNetwork", "hostPID", "pullSecrets: s"))


@pytest.mark.parametrize("name", ["job", "settings", "checked", "no-token"])
def test_edls_own_volumes_are_taken_nowhere(name):
    with pytest.raises(UsageError, match="edl's own"):
        wanted(edljob(worker=pod(volumes=[{"name": name, "emptyDir": {}}])))


def test_a_job_that_would_take_the_controllers_lease_is_refused():
    with pytest.raises(UsageError, match="edl's own"):
        wanted(edljob("controller"))


@pytest.mark.parametrize(
    "text",
    ["a", "[1]", "secret: [a]", "secrets: a", "secrets: [1]", "namespaces: 1", "a: [", "{a: {}}"],
)
def test_a_list_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="EDL_ALLOW"):
        Installed.parse(text)


def test_a_list_is_of_a_namespace_where_one_is_named():
    found = Installed.parse("{secrets: [a], namespaces: {b: {secrets: [c]}}}")

    assert (found.of("x").secrets, found.of("b").secrets) == (("a",), ("c",))
    assert found.of("b").claims == ("*",)
    assert Installed.parse("") == Installed()


NAMES = st.sampled_from(
    ["hostNetwork", "volumes", "containers", "secret", "name", "edl", "env", "a"]
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | NAMES,
    lambda below: st.lists(below, max_size=2) | st.dictionaries(NAMES, below, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["master", "ps", "worker"]), st.dictionaries(NAMES, ANY, max_size=3))
def test_whatever_is_written_no_pod_gets_more(role, written):
    """Whatever is written is refused in words, or the pods are as without it in what matters."""
    try:
        made = wanted(edljob(**{role: {"podTemplate": {"spec": written}}})).templates
    except UsageError:
        return

    for template in made.values():
        spec = template["spec"]
        assert not spec.get("hostNetwork")
        assert all("secret" not in each for each in spec["volumes"])
        assert [each["name"] for each in spec["containers"]] == ["edl"]


# -- null

# What edl makes a pod of that nothing of an EdlJob may take away.
RESTRICTED = {
    "restartPolicy": "Never",
    "enableServiceLinks": False,
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
RESTRICTED_CONTAINER = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
ALLOWED_SOURCES = {"name", "emptyDir", "persistentVolumeClaim", "configMap"}


def assert_protected(made):
    """Assert that all pods are restricted, with their account, and with a token where one is."""
    for role, template in made.items():
        spec = template["spec"]
        assert {name: spec.get(name) for name in RESTRICTED} == RESTRICTED
        assert spec["automountServiceAccountToken"] is (role == "master")
        account = "edl-master" if role == "master" else "edl-replica"
        assert spec["serviceAccountName"] == account
        assert spec["tolerations"]
        assert spec["terminationGracePeriodSeconds"] > 0
        assert [each["name"] for each in spec["containers"]] == ["edl"]
        for each in (*spec["containers"], *spec.get("initContainers", [])):
            assert each["securityContext"] == RESTRICTED_CONTAINER
            known = {variable["name"] for variable in each["env"]}
            assert known >= {"EDL_HOST", "EDL_JOB_DIR", "EDL_TOKEN", "EDL_IDENTITY"}
        assert all(each.keys() <= ALLOWED_SOURCES for each in spec["volumes"])
        assert template["metadata"]["labels"]["edl.dev/job-name"] == "demo"


ROLES = ("master", "ps", "worker", "teacher")
PLAIN = wanted(edljob()).templates
OF_PODS = sorted({name for each in PLAIN.values() for name in each["spec"]} | {"hostNetwork"})
OF_CONTAINERS = sorted(pods.container_of(PLAIN["master"]).keys() - {"name"} | {"envFrom"})


@pytest.mark.parametrize("role", ROLES)
def test_a_null_takes_nothing_away_that_edl_sets(role):
    """Broken once: a pod without runAsNonRoot and seccomp, of the account `default`."""
    nulls = dict.fromkeys(OF_PODS)
    container = {"name": "edl", **dict.fromkeys(OF_CONTAINERS)}
    labels = dict.fromkeys(PLAIN[role]["metadata"]["labels"])

    for spec in (nulls, {**nulls, "containers": [container]}, None):
        template = {"metadata": {"labels": labels, "annotations": None}, "spec": spec}
        made = wanted(edljob(**{role: {"podTemplate": template}})).templates

        assert made == PLAIN
    assert wanted(edljob(**{role: {"podTemplate": None}})).templates == PLAIN
    assert_protected(PLAIN)


@pytest.mark.parametrize("installed", [Installed(), EVERYTHING], ids=["usual", "all is allowed"])
def test_a_null_is_as_if_it_were_not_there_in_what_edl_sets_in_parts(installed):
    written = {
        "securityContext": {"runAsNonRoot": None, "seccompProfile": {"type": None}},
        "containers": [
            {"name": "edl", "securityContext": {"capabilities": {"drop": None}}},
        ],
    }

    if installed is EVERYTHING:
        assert_protected(wanted(edljob(worker=pod(**written)), installed=installed).templates)
    else:  # what is left of it still says something of a part that is not allowed
        with pytest.raises(NotAllowed):
            wanted(edljob(worker=pod(**written)))


def test_a_cluster_spec_takes_nothing_away_by_null_either():
    settings = JobSettings(job_name="demo", image_name="edl:1")
    nulls = dict.fromkeys(OF_PODS)
    nulls["containers"] = [{"name": "edl", "env": None, "securityContext": None}]

    for part in ("pod", "master", "worker"):
        assert pods.templates(settings, {part: nulls}) == pods.templates(settings)


def places(value, path=()):
    """Yield the paths of all places of a value."""
    yield path
    parts = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else parts:
        yield from places(each, (*path, key))


def put(value, path, new):
    """Return the value with something new at a path."""
    if not path:
        return new
    made = copy.copy(value)
    made[path[0]] = put(value[path[0]], path[1:], new)
    return made


FULL = {
    **copy.deepcopy(SPEC),
    **copy.deepcopy(HARMLESS),
    "envs": {"A": "1"},
    "imagePullSecrets": [{"name": "registry"}],
    "scheduling": {"priority": 1},
    "ps": {"replicas": 2, "resources": {"limits": {"memory": "1Gi"}}},
    "teacher": {"replicas": 1, "maxReplicas": 2},
}
FULL["settings"] |= {"model_params": {"a": [1]}, "drain_grace_s": 5, "logger": ""}
FULL["worker"] |= {"replicas": 4, "minReplicas": 1, "maxReplicas": 8}
FULL["worker"]["podTemplate"]["spec"] |= {
    **source(configMap={"name": "edl-demo-definition"}),
    "topologySpreadConstraints": [{"maxSkew": 1, "labelSelector": {"matchLabels": {"a": "b"}}}],
}
FULL["worker"]["podTemplate"]["spec"]["containers"][0] |= {
    "envFrom": [{"prefix": "A", "configMapRef": {"name": "edl-demo-definition"}}],
}
FULL["master"]["podTemplate"] = {
    "metadata": {"annotations": {}},
    "spec": {"containers": [{"name": "edl", "resources": {"requests": {"cpu": 1}}}]},
}
WIDE = Installed(Allowed(config_maps=("*",), pull_secrets=("*",)))
# Written anywhere, besides what is there.
UNSAID = st.dictionaries(st.sampled_from([*OF_PODS, *OF_CONTAINERS]), st.none(), max_size=3)


@given(
    st.lists(st.sampled_from([path for path in places(FULL) if path]), min_size=1, max_size=4),
    UNSAID,
    st.sampled_from(ROLES),
)
def test_null_anywhere_in_a_spec_is_refused_in_a_line_or_the_pods_keep_all(paths, unsaid, role):
    """Broken once: TypeError of `env: null`, and a master whose restartPolicy is Always."""
    spec = put(FULL, (role,), {**FULL[role], "podTemplate": FULL[role].get("podTemplate") or {}})
    template = spec[role]["podTemplate"]
    more = {**template, "spec": {**(template.get("spec") or {}), **without(unsaid, template)}}
    spec = put(spec, (role, "podTemplate"), more)
    for path in paths:
        try:
            spec = put(spec, path, None)
        except (TypeError, KeyError):
            continue  # below one that is null by now
    job = edljob()
    job["spec"] = spec

    try:
        templates(job)  # allowed or not, as a scheduler asks
        made, refused = wanted(job, installed=WIDE).templates, ""
    except UsageError as error:
        made, refused = {}, str(error)

    assert_protected(made)
    assert "\n" not in refused


def without(unsaid, template):
    return {name: each for name, each in unsaid.items() if name not in (template.get("spec") or {})}


def test_a_pod_is_held_against_the_list_as_it_will_be_and_not_as_it_was_written():
    """Whatever laying over does to what was written, a protection that is gone is named."""
    for field in ("securityContext", "serviceAccountName", "automountServiceAccountToken"):
        made = copy.deepcopy(PLAIN)
        made["worker"]["spec"][field] = None
        with pytest.raises(NotAllowed, match=rf"spec\.worker\.podTemplate\.spec\.{field}"):
            check_pods(made, PLAIN, EVERYTHING.allowed)
    for role, spec, named in (
        ("master", {"serviceAccountName": "default"}, "spec.master.podTemplate.spec.service"),
        ("ps", {"hostPID": True}, "spec.ps.podTemplate.spec.hostPID"),
        ("worker_low", {"hostIPC": True}, "spec.worker.podTemplate.spec.hostIPC"),
    ):
        made = copy.deepcopy(PLAIN)
        made[role]["spec"] |= spec
        with pytest.raises(NotAllowed) as refused:
            check_pods(made, PLAIN, Allowed())
        assert named in str(refused.value)
    for kind in ({"hostPath": {"path": "/etc"}}, {"projected": TOKEN}):
        made = copy.deepcopy(PLAIN)
        made["ps"]["spec"]["volumes"].append({"name": "v", **kind})
        with pytest.raises(NotAllowed):
            check_pods(made, PLAIN, Allowed())
    made = copy.deepcopy(PLAIN)
    pods.container_of(made["ps"])["securityContext"] = {"privileged": True}
    with pytest.raises(NotAllowed, match="securityContext"):
        check_pods(made, PLAIN, Allowed())


# -- the master


BEFORE = [{"name": "setup", "image": "i", "resources": {"requests": {"cpu": "9"}}}]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"master": pod(initContainers=BEFORE)}, "spec.master.podTemplate.spec.initContainers: "),
        ({"master": edl(image="i")}, "a master has the controller's image"),
        ({"master": edl(imagePullPolicy="Always")}, "containers.imagePullPolicy: "),
        ({"master": edl(args=["x"])}, "spec.master.podTemplate.spec.containers.args: "),
        ({"worker": edl(args=["x"])}, "spec.worker.podTemplate.spec.containers.args: "),
    ],
)
def test_what_would_not_reach_a_pod_is_refused_in_words_and_not_counted(spec, words):
    """Broken once: init containers of the master are dropped silently, and counted by Kueue."""
    for asks in (lambda job: wanted(job, installed=EVERYTHING), templates):
        with pytest.raises(UsageError) as refused:
            asks(edljob(**spec))
        assert words in str(refused.value)
        assert not isinstance(refused.value, NotAllowed)


def test_what_stands_beside_a_container_reaches_the_pod_and_gets_no_token():
    """Broken once: a container beside the master's has the token that makes pods."""
    beside = [{"name": "log", "image": "log:1"}]
    spec = {"initContainers": BEFORE, "containers": beside}

    made = wanted(
        edljob(master=pod(containers=beside), worker=pod(**spec)), installed=EVERYTHING
    ).templates
    master, worker = made["master"]["spec"], made["worker"]["spec"]
    tokens = {
        each["name"]: any(m["mountPath"] == TOKEN_DIR for m in each.get("volumeMounts", []))
        for each in (*master["initContainers"], *master["containers"])
    }

    assert tokens == {"check": True, "edl": False, "log": True}  # a mount there keeps it off
    assert worker["initContainers"] == BEFORE
    assert beside[0] in worker["containers"]


def test_only_the_masters_own_container_has_a_token_and_its_image_is_the_installers():
    installed = Installed(image="trusted:1", pull_policy="Always", pull_secrets=("registry",))
    job = edljob(
        image="users:1",
        worker=edl(env=[{"name": "A", "value": "1"}]),
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
    )

    made = wanted(job, installed=installed).templates
    spec = made["master"]["spec"]
    (main,), (check,) = spec["containers"], spec["initContainers"]
    mounts = {each["mountPath"]: each for each in check["volumeMounts"]}

    assert (main["image"], main["imagePullPolicy"], check["image"]) == (
        "trusted:1",
        "Always",
        "users:1",
    )
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["serviceAccountName"] == "edl-master"
    assert mounts["/var/run/secrets/kubernetes.io/serviceaccount"]["name"] == "no-token"
    assert mounts[pods.JOB_DIR]["readOnly"]
    assert mounts["/data"]["name"] == "data"
    assert {"name": "A", "value": "1"} in check["env"]
    assert {"name": "PYTHONSAFEPATH", "value": "1"} in main["env"]
    assert {"name": "A", "value": "1"} not in main["env"]
    assert {each["mountPath"] for each in main["volumeMounts"]} == {
        *(pods.JOB_DIR, pods.SETTINGS_DIR, pods.CHECKED_DIR, "/dev/shm", "/data")
    }
    for role in ("ps", "worker"):
        assert made[role]["spec"]["automountServiceAccountToken"] is False
        assert made[role]["spec"]["serviceAccountName"] == "edl-replica"
        assert pods.container_of(made[role])["image"] == "users:1"


def test_a_volume_that_is_two_things_in_one_masters_pod_is_refused():
    two = {"name": "v", "emptyDir": {"medium": "Memory"}}
    job = edljob(worker=pod(volumes=[two]), master=pod(volumes=[{"name": "v", "emptyDir": {}}]))

    with pytest.raises(UsageError, match="different names"):
        wanted(job)
