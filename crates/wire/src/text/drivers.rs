//! Devices that a stage is not given, because no driver of its program reaches them.

use het_core::Name;

use super::Lang;

/// Device names that a sentence tells.
const NAMES_MAX: usize = 4;

/// That an alternative passes over devices (by name, at least one) which these drivers run.
pub fn passed_over(
    lang: Lang,
    word: &Name,
    devices: &[&str],
    (of_devices, of_program): (&[Name], &[Name]),
) -> String {
    let others = devices.len().saturating_sub(NAMES_MAX);
    let shown = quoted(lang, devices.iter().take(NAMES_MAX).copied());
    let more = match others {
        0 => String::new(),
        _ => lang.pick(format!(" and {others} more"), format!("等 {} 个", devices.len())),
    };
    let runs = quoted(lang, of_devices.iter().map(Name::as_str));
    let of_program = program_drivers(lang, of_program);
    lang.pick(
        format!("`{word}` passes over {shown}{more}, run by {runs}: its program has {of_program}"),
        format!("`{word}` 跳过 {shown}{more}（驱动为 {runs}）：其程序{of_program}"),
    )
}

/// That no alternative device of a word is reached at all, and what to do.
pub(super) fn no_driver(lang: Lang, word: &Name, drivers: &[Name]) -> String {
    let of_program = program_drivers(lang, drivers);
    lang.pick(
        format!(
            "`{word}` is there, but its program has {of_program}: ask for other devices, or name \
             in `drivers` what the program has"
        ),
        format!(
            "有 `{word}`，但其程序{of_program}：请改用其他设备，或在 `drivers` 中写明程序的驱动"
        ),
    )
}

fn program_drivers(lang: Lang, drivers: &[Name]) -> String {
    let shown = quoted(lang, drivers.iter().map(Name::as_str));
    match drivers {
        [] => lang.pick("no driver that works".to_owned(), "没有可用的驱动".to_owned()),
        [_] => lang.pick(format!("only the driver {shown}"), format!("只有驱动 {shown}")),
        _ => lang.pick(format!("only the drivers {shown}"), format!("只有驱动 {shown}")),
    }
}

fn quoted<'a>(lang: Lang, words: impl Iterator<Item = &'a str>) -> String {
    let separator = match lang {
        Lang::En => ", ",
        Lang::Zh => "、",
    };
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_tells_some_devices_and_all_drivers() {
        let (word, cpu): (Name, [Name; 1]) = ("npu".into(), ["cpu".into()]);
        let check = |devices: &[&str], program: &[Name], english: &str, chinese: &str| {
            let drivers: [Name; 2] = ["cann".into(), "npu-ort".into()];
            let told = |lang| passed_over(lang, &word, devices, (&drivers, program));
            assert_eq!((told(Lang::En).as_str(), told(Lang::Zh).as_str()), (english, chinese));
        };
        check(
            &["npu0"],
            &cpu,
            "`npu` passes over `npu0`, run by `cann`, `npu-ort`: its program has only the driver \
             `cpu`",
            "`npu` 跳过 `npu0`（驱动为 `cann`、`npu-ort`）：其程序只有驱动 `cpu`",
        );
        check(
            &["npu0", "npu1", "npu2", "npu3", "npu4", "npu5"],
            &[],
            "`npu` passes over `npu0`, `npu1`, `npu2`, `npu3` and 2 more, run by `cann`, \
             `npu-ort`: its program has no driver that works",
            "`npu` 跳过 `npu0`、`npu1`、`npu2`、`npu3`等 6 个（驱动为 `cann`、`npu-ort`）：\
             其程序没有可用的驱动",
        );
    }
}
