"""catalog: what is known of all variants, for programs, for people and for the Hub."""


# As Snakemake merged it, of however many files.
rule matrix:
    output:
        "build/matrix.json",
    log:
        "logs/catalog/matrix.log",
    localrule: True
    params:
        matrix=json.dumps(config, sort_keys=True),
    message:
        "matrix: the configuration as one file"
    shell:
        "printf '%s' {params.matrix:q} > {output:q} 2> {log:q}"


rule catalog:
    input:
        code=step_sources("catalog"),
        templates=data_files("catalog/cards") + data_files("catalog/page"),
        matrix="build/matrix.json",
        manifests=expand("artifacts/{variant}/manifest.json", variant=VARIANTS),
        reports=expand("artifacts/{variant}/report.json", variant=VARIANTS),
    output:
        catalog=report(
            "catalog/catalog.json",
            caption="../report/catalog.rst",
            category="Catalog",
            labels={"for": "programs"},
        ),
        page=report(
            "catalog/index.html",
            caption="../report/page.rst",
            category="Catalog",
            labels={"for": "people"},
        ),
        card=report(
            "catalog/README.md",
            caption="../report/repository.rst",
            category="Catalog",
            labels={"for": "the Hub"},
        ),
    log:
        "logs/catalog/catalog.log",
    benchmark:
        "logs/benchmarks/catalog/catalog.tsv"
    threads: 1
    resources:
        mem_mb=200,
    params:
        artifacts=lambda wildcards, input: Path(input.reports[0]).parent.parent,
        folder=subpath(output.page, parent=True),
        versions=tool_versions("jinja2", "huggingface_hub"),
    message:
        "catalog: all variants (log: {log})"
    shell:
        "python -m voxtral_build catalog --config {input.matrix:q}"
        " --artifacts {params.artifacts:q} --output {params.folder:q} 2> {log:q}"
