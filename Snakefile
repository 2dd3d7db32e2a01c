# Voxtral Realtime checkpoints as ExecuTorch programs.
#
#   snakemake                                     every variant that this host can lower
#   snakemake xnnpack                             one backend
#   snakemake graphs                              all that can be made here of the others
#   snakemake artifacts/<variant>/report.json     one variant
#   snakemake publish --config hub_repo=org/name  all of it to the Hugging Face Hub
#
#   checkpoints/                what was fetched from the Hub, kept
#   build/checkpoint/           what everything is made from
#   build/inventory.json        its tensors, checked
#   build/weights/{weights}     <component>-<dtype>-<quantization>
#   build/graphs/{graph}        <attention>-<dtype>-<method>-<mode>-<quantization>
#   build/units/{unit}          <backend>-<dtype>-<method>-<mode>-<quantization>
#   build/preprocessors/{mode}  offline or streaming
#   build/reference.safetensors what the model itself makes of the speech for validation
#   artifacts/{variant}/        <backend>-<dtype>-<scheme>-<mode>
#   catalog/                    all variants: catalog.json, a page, the repository's card
#   logs/<stage>/, logs/benchmarks/<stage>/
from snakemake.utils import min_version

min_version("9.12")


configfile: "config/matrix.yaml"


# In order of execution.
include: "workflow/rules/common.smk"
include: "workflow/rules/download.smk"
include: "workflow/rules/meta_load.smk"
include: "workflow/rules/quantize.smk"
include: "workflow/rules/export.smk"
include: "workflow/rules/lower.smk"
include: "workflow/rules/preprocessor.smk"
include: "workflow/rules/link.smk"
include: "workflow/rules/reference.smk"
include: "workflow/rules/validate.smk"
include: "workflow/rules/card.smk"
include: "workflow/rules/catalog.smk"
include: "workflow/rules/publish.smk"


report: "workflow/report/workflow.rst"


onstart:
    tell_what_is_not_built_here()


onerror:
    catalog_of_what_is_there()


rule all:
    default_target: True
    input:
        "build/inventory.json",
        artifacts_of_this_host,
        "catalog/index.html",
    localrule: True
    message:
        "all variants that can be lowered here are built and checked"


# What can be made on any host of variants that another one has to lower.
rule graphs:
    input:
        graph_files,
        weights_files,
    localrule: True
    message:
        "all graphs are exported, and all weights quantized"


# `snakemake xnnpack` and so on.
for backend in BACKENDS:

    rule:
        name:
            backend
        input:
            lambda wildcards, backend=backend: backend_artifacts(backend),
        localrule: True
        message:
            f"all {backend} variants are built and checked"
