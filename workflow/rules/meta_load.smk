"""meta_load: every tensor's name, shape and dtype held against the model; none is read.

What reads weights waits for the inventory, so that a wrong checkpoint fails at once.
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
    threads: 1
    resources:
        mem_mb=1000,
    params:
        checkpoint=subpath(input.params, parent=True),
        versions=tool_versions("torch", "pydantic"),
    message:
        "meta_load: the checkpoint against the model (log: {log})"
    shell:
        "python -m voxtral_build meta-load --checkpoint {params.checkpoint:q}"
        " --output {output:q} 2> {log:q}"
