"""lower: a graph and its weights compiled for a backend, as a one-method .pte."""


rule lower:
    input:
        code=lower_code,
        inventory=INVENTORY,
        params=PARAMS,
        graph=unit_graph,
        weights=unit_weights,
    output:
        "build/units/{unit}.pte",
    log:
        "logs/lower/{unit}.log",
    benchmark:
        "logs/benchmarks/lower/{unit}.tsv"
    threads: 1
    resources:
        mem_mb=lower_mb,
    params:
        checkpoint=subpath(input.params, parent=True),
        unit=unit_flags,
        settings=settings_flags(),
        versions=tool_versions("torch", "torchao", "executorch"),
    message:
        "lower: {wildcards.unit} (log: {log})"
    shell:
        "python -m voxtral_build lower --checkpoint {params.checkpoint:q} --graph {input.graph:q}"
        " {params.unit} {params.settings} --output {output:q} 2> {log:q}"
