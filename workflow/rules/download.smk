"""download: the checkpoint's three files, made or linked from a folder."""


rule download:
    input:
        code=step_sources("download"),
        source=source_files(),
    output:
        params=PARAMS,
        weights=CHECKPOINT_WEIGHTS,
        tokenizer=TOKENIZER,
    log:
        "logs/download/checkpoint.log",
    benchmark:
        "logs/benchmarks/download/checkpoint.tsv"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        source=source_flags(),
        folder=subpath(output.params, parent=True),
        versions=tool_versions("numpy"),
    message:
        "download: checkpoint from {params.source} (log: {log})"
    shell:
        "python -m voxtral_build download {params.source} {params.folder:q} 2> {log:q}"
