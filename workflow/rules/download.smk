"""download: the checkpoint's three files, made, fetched from the Hub, or linked from a folder.

What comes from the Hub is kept in checkpoints/, write-protected, and build/checkpoint/ has links
to it. So a rerun, for whatever reason (an edit, a new tool, a hash that was added), checks
files and fetches none again. Snakemake's own `protected` would end such a rerun in an error.
"""


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
    retries: download_retries()
    threads: 1
    resources:
        mem_mb=1000,
    params:
        source=source_flags(),
        folder=subpath(output.params, parent=True),
        versions=tool_versions("huggingface_hub", "numpy"),
    message:
        "download: checkpoint from {params.source} (log: {log})"
    shell:
        "python -m voxtral_build download {params.source} {params.folder:q} 2> {log:q}"
