"""quantize: one component's weights, once for both modes and all backends."""


rule quantize:
    input:
        code=step_sources("quantize"),
        inventory=INVENTORY,
        params=PARAMS,
        weights=CHECKPOINT_WEIGHTS,
    output:
        "build/weights/{weights}.safetensors",
    log:
        "logs/quantize/{weights}.log",
    benchmark:
        "logs/benchmarks/quantize/{weights}.tsv"
    threads: 1
    resources:
        mem_mb=streaming_mb(),
    params:
        checkpoint=subpath(input.params, parent=True),
        weights=weights_flags,
        versions=tool_versions("torch", "torchao"),
    message:
        "quantize: {wildcards.weights} (log: {log})"
    shell:
        "python -m voxtral_build quantize --checkpoint {params.checkpoint:q} {params.weights}"
        " --output {output:q} 2> {log:q}"
