"""catalog: what is known of all variants, for programs, for people and for the Hub."""


# As Snakemake merged it, of however many files.
rule matrix:
    output:
        "build/matrix.json",
    log:
        "logs/catalog/matrix.log",
    localrule: True
    params:
        matrix=matrix_json(),
    message:
        "matrix: the configuration as one file"
    shell:
        "printf '%s' {params.matrix:q} > {output:q} 2> {log:q}"


rule catalog:
    input:
        code=step_sources("catalog"),
        templates=data_files("catalog/cards") + data_files("catalog/page"),
        matrix="build/matrix.json",
        manifests=manifests_of_this_host,
        reports=reports_of_this_host,
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
        artifacts="artifacts",
        brought=brought_reports,
        folder=subpath(output.page, parent=True),
        versions=tool_versions("jinja2", "huggingface_hub"),
    message:
        "catalog: all variants (log: {log})"
    shell:
        "python -m voxtral_build catalog --config {input.matrix:q}"
        " --artifacts {params.artifacts:q} --output {params.folder:q} 2> {log:q}"
