"""quantize: one component's weights, once for both modes and all backends."""


rule quantize:
    input:
        code=step_sources("quantize"),
        inventory=INVENTORY,
        params=PARAMS,
        weights=CHECKPOINT_WEIGHTS,
    output:
        weights="build/weights/{weights}.safetensors",
        report="build/weights/{weights}.json",
    log:
        "logs/quantize/{weights}.log",
    benchmark:
        "logs/benchmarks/quantize/{weights}.tsv"
    threads: all_cores_if_large()
    resources:
        mem_mb=1500,
    params:
        checkpoint=subpath(input.params, parent=True),
        weights=weights_flags,
        versions=tool_versions("torch", "torchao"),
    message:
        "quantize: {wildcards.weights} (log: {log})"
    shell:
        "python -m voxtral_build quantize --checkpoint {params.checkpoint:q} {params.weights}"
        " --threads {threads} --output {output.weights:q} 2> {log:q}"
