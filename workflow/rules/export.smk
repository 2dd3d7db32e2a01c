"""export: one method as a graph without weights; needs params.json only."""


rule export:
    input:
        code=export_code,
        params=PARAMS,
    output:
        "build/graphs/{graph}.pt2",
    log:
        "logs/export/{graph}.log",
    benchmark:
        "logs/benchmarks/export/{graph}.tsv"
    threads: 1
    resources:
        mem_mb=1500,
    params:
        graph=graph_flags,
        settings=settings_flags(),
        versions=tool_versions("torch", "torchao", "executorch"),
    message:
        "export: {wildcards.graph} (log: {log})"
    shell:
        "python -m voxtral_build export --params {input.params:q} {params.graph}"
        " {params.settings} --output {output:q} 2> {log:q}"
