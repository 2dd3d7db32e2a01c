"""publish: every validated artifact to the Hugging Face Hub, in one commit.

REQUIRED: --config hub_repo=organization/name; HF_TOKEN in the environment, or `hf auth login`.
It has no output: what is there already is for the Hub to say, and is asked each time.
"""


rule publish:
    input:
        artifacts_of_this_host,
        matrix="build/matrix.json",
        catalog="catalog/index.html",
    log:
        "logs/publish/publish.log",
    localrule: True
    params:
        artifacts="artifacts",
        hub=publish_flags,
    message:
        "publish: validated artifacts (log: {log})"
    shell:
        "python -m voxtral_build publish {params.hub} --config {input.matrix:q}"
        " --artifacts {params.artifacts:q} 2> >(tee {log:q} >&2)"
