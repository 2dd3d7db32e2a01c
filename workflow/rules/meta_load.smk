"""meta_load: every tensor's name, shape and dtype held against the model, then every value read.

A wrong header fails in seconds. The values are read once, in blocks: one thread looks for
NaN and infinity, another hashes. What reads weights waits for the inventory, so that a
wrong checkpoint fails before any work.
"""


rule meta_load:
    input:
        code=step_sources("meta_load"),
        params=PARAMS,
        weights=CHECKPOINT_WEIGHTS,
        tokenizer=TOKENIZER,
    output:
        INVENTORY,
    log:
        "logs/meta_load/inventory.log",
    benchmark:
        "logs/benchmarks/meta_load/inventory.tsv"
    priority: 1
    threads: 2
    resources:
        mem_mb=1000,
    params:
        checkpoint=subpath(input.params, parent=True),
        versions=tool_versions("torch", "pydantic", "numpy"),
    message:
        "meta_load: the checkpoint against the model (log: {log})"
    shell:
        "python -m voxtral_build meta-load --checkpoint {params.checkpoint:q}"
        " --output {output:q} 2> {log:q}"
