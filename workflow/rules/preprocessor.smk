"""preprocessor: samples to log-mel, for a mode; needs params.json only."""


rule preprocessor:
    input:
        code=preprocessor_code,
        params=PARAMS,
    output:
        "build/preprocessors/{mode}.pte",
    log:
        "logs/preprocessor/{mode}.log",
    benchmark:
        "logs/benchmarks/preprocessor/{mode}.tsv"
    threads: 1
    resources:
        mem_mb=1500,
    params:
        preprocessor=preprocessor_flags,
        versions=tool_versions("torch", "executorch"),
    message:
        "preprocessor: {wildcards.mode} (log: {log})"
    shell:
        "python -m voxtral_build preprocessor --params {input.params:q}"
        " {params.preprocessor} --output {output:q} 2> {log:q}"
