"""card: an artifact's README.md for the Hub, from its report and its manifest."""


rule card:
    input:
        code=step_sources("card"),
        templates=data_files("catalog/cards"),
        manifest="artifacts/{variant}/manifest.json",
        report="artifacts/{variant}/report.json",
    output:
        report(
            "artifacts/{variant}/README.md",
            caption="../report/card.rst",
            category="Artifacts",
            labels=card_labels,
        ),
    log:
        "logs/card/{variant}.log",
    benchmark:
        "logs/benchmarks/card/{variant}.tsv"
    threads: 1
    resources:
        mem_mb=200,
    params:
        artifact=subpath(input.report, parent=True),
        versions=tool_versions("jinja2", "huggingface_hub"),
    message:
        "card: {wildcards.variant} (log: {log})"
    shell:
        "python -m voxtral_build card --artifact {params.artifact:q} --output {output:q} 2> {log:q}"
