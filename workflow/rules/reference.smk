"""reference: what the model itself makes of the speech, once for all variants."""


rule reference:
    input:
        code=step_sources("reference"),
        params=PARAMS,
        weights=CHECKPOINT_WEIGHTS,
        tokenizer=TOKENIZER,
        inventory=INVENTORY,
        audio=audio(),
    output:
        REFERENCE,
    log:
        "logs/reference/speech.log",
    benchmark:
        "logs/benchmarks/reference/speech.tsv"
    threads: all_cores_if_large()
    resources:
        mem_mb=reference_mb(),
    params:
        checkpoint=subpath(input.params, parent=True),
        delay=flags(delay_tokens=MATRIX.settings.delay_tokens),
        versions=tool_versions("torch", "soundfile", "soxr"),
    message:
        "reference: the model in float32 (log: {log})"
    shell:
        "python -m voxtral_build reference --checkpoint {params.checkpoint:q}"
        " {params.delay} --audio {input.audio:q} --output {output:q} 2> {log:q}"
