"""validate: an artifact run in a fresh process and held against the model in eager."""


rule validate:
    input:
        code=validate_code,
        model="artifacts/{variant}/model.pte",
        data=artifact_data,
        preprocessor="artifacts/{variant}/preprocessor.pte",
        tokenizer="artifacts/{variant}/tekken.json",
        manifest="artifacts/{variant}/manifest.json",
        params=PARAMS,
        checkpoint=CHECKPOINT_WEIGHTS,
        weights=variant_weights,
        audio=audio(),
        reference=REFERENCE,
        clips=clip_files(),
    output:
        report(
            "artifacts/{variant}/report.json",
            caption="../report/report.rst",
            category="Artifacts",
            labels=report_labels,
        ),
    log:
        "logs/validate/{variant}.log",
    benchmark:
        "logs/benchmarks/validate/{variant}.tsv"
    # All of them: it takes times, which another job beside it would spoil.
    threads: workflow.cores
    resources:
        mem_mb=validate_mb,
    params:
        artifact=subpath(input.model, parent=True),
        checkpoint=subpath(input.params, parent=True),
        scheme=scheme_flags,
        settings=settings_flags(),
        clips=flags(clips=clips_folder()),
        gates=gates_flags,
        versions=tool_versions(
            "torch", "torchao", "executorch", "soundfile", "soxr", "jiwer"
        ),
    message:
        "validate: {wildcards.variant} (log: {log})"
    shell:
        "python -m voxtral_build validate --artifact {params.artifact:q}"
        " --checkpoint {params.checkpoint:q} {params.scheme} {params.settings}"
        " {params.clips} {params.gates}"
        " --audio {input.audio:q} --reference {input.reference:q} --output {output:q} 2> {log:q}"
