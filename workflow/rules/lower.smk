"""lower: a graph and its weights compiled for a backend, as a one-method .pte."""


rule lower:
    input:
        code=lower_code,
        inventory=INVENTORY,
        params=PARAMS,
        graph=unit_graph,
        weights=unit_weights,
    output:
        unit="build/units/{unit}.pte",
    log:
        "logs/lower/{unit}.log",
    benchmark:
        "logs/benchmarks/lower/{unit}.tsv"
    wildcard_constraints:
        unit=of_backends(data_file=False),
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
        " {params.unit} {params.settings} --output {output.unit:q} 2> {log:q}"


# For a backend that keeps weights in a file of their own.
use rule lower as lower_with_data with:
    output:
        unit="build/units/{unit}.pte",
        data="build/units/{unit}.ptd",
    wildcard_constraints:
        unit=of_backends(data_file=True),
