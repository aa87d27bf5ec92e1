"""Facts of a recording that say something only together."""

from __future__ import annotations

from hypocenter.checklist.file_entries import FileEntries, framework


@framework("recording")
def settle(sheet: FileEntries) -> None:
    """The format of computation, betas, and the rate as it was at the first update."""
    autocast = sheet.value("settings.autocast")
    if autocast is not None:
        sheet.set("precision.compute_dtype", autocast, "settings.autocast")
    elif sheet.says("modules.params_dtype"):
        why = "no autocast: the format of the parameters"
        sheet.set("precision.compute_dtype", sheet.value("modules.params_dtype"), "modules.params_dtype", derived=why)
    if sheet.has("settings.loss_scale"):
        has_scaler = sheet.value("settings.loss_scale") is not None
        sheet.set("precision.loss_scale", "dynamic" if has_scaler else "none", "settings.loss_scale")
    betas = sheet.value("optimizer.options.betas")
    if isinstance(betas, tuple) and len(betas) == 2:
        sheet.set("optimizer.beta1", betas[0], "optimizer.options.betas")
        sheet.set("optimizer.beta2", betas[1], "optimizer.options.betas")
    if (
        sheet.value("optimizer.kind") in ("Adam", "FusedAdam")
        and sheet.value("optimizer.options.decoupled_weight_decay") is True
    ):
        why = "decoupled_weight_decay is on"
        sheet.set("optimizer.type", "adamw", "optimizer.kind", "optimizer.options.decoupled_weight_decay", derived=why)
    if sheet.says("optimizer.options.initial_lr"):
        sheet.set("optimizer.lr", sheet.value("optimizer.options.initial_lr"), "optimizer.options.initial_lr")
    elif sheet.says("optimizer.options.lr"):
        rate, why = (
            sheet.value("optimizer.options.lr"),
            "the rate of the first recorded update: with a warm-up it is less",
        )
        sheet.set("optimizer.lr", rate, "optimizer.options.lr", derived=why)
