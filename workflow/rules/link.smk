"""link: a variant's units joined into model.pte, and what belongs to it beside it."""


rule link:
    input:
        code=step_sources("link"),
        params=PARAMS,
        inventory=INVENTORY,
        tokenizer=TOKENIZER,
        units=variant_units,
        data=variant_data,
        preprocessor=variant_preprocessor,
        weights=variant_weights_reports,
    output:
        model="artifacts/{variant}/model.pte",
        preprocessor="artifacts/{variant}/preprocessor.pte",
        tokenizer="artifacts/{variant}/tekken.json",
        manifest="artifacts/{variant}/manifest.json",
    log:
        "logs/link/{variant}.log",
    benchmark:
        "logs/benchmarks/link/{variant}.tsv"
    wildcard_constraints:
        variant=of_backends(data_file=False),
    threads: 1
    resources:
        mem_mb=1000,
    params:
        checkpoint=subpath(input.params, parent=True),
        scheme=scheme_flags,
        settings=settings_flags(),
        units=unit_list_flags,
        folder=subpath(output.model, parent=True),
        versions=tool_versions(
            "executorch", "numpy", "pydantic", "safetensors", "torch", "torchao"
        ),
    message:
        "link: {wildcards.variant} (log: {log})"
    shell:
        "python -m voxtral_build link --checkpoint {params.checkpoint:q} --inventory {input.inventory:q}"
        " {params.scheme}"
        " {params.settings} {params.units} --preprocessor {input.preprocessor:q}"
        " --output {params.folder:q} 2> {log:q}"


# Of a backend that keeps weights in a file of their own: model.pte and model.ptd are a pair.
use rule link as link_with_data with:
    output:
        model="artifacts/{variant}/model.pte",
        data="artifacts/{variant}/model.ptd",
        preprocessor="artifacts/{variant}/preprocessor.pte",
        tokenizer="artifacts/{variant}/tekken.json",
        manifest="artifacts/{variant}/manifest.json",
    wildcard_constraints:
        variant=of_backends(data_file=True),
