"""reference: what the model itself makes of speech and clips, once for all variants."""


rule reference:
    input:
        code=step_sources("reference"),
        params=PARAMS,
        weights=CHECKPOINT_WEIGHTS,
        tokenizer=TOKENIZER,
        inventory=INVENTORY,
        audio=audio(),
        clips=clip_files(),
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
        clips=flags(clips=clips_folder()),
        versions=tool_versions("torch", "soundfile", "soxr"),
    message:
        "reference: the model in float32 (log: {log})"
    shell:
        "python -m voxtral_build reference --checkpoint {params.checkpoint:q}"
        " {params.delay} --audio {input.audio:q} {params.clips}"
        " --output {output:q} 2> {log:q}"
