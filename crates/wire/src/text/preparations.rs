//! What is begun for stages that wait for their devices.

use super::Lang;

/// That the program of a stage was started and waits.
pub fn starts_warm(lang: Lang, node: &str) -> String {
    lang.pick(
        format!("its program has been started on `{node}` and waits there for its devices"),
        format!("程序已在 `{node}` 上启动，正在等待设备"),
    )
}

/// That the inputs of a stage are read.
pub fn reads_inputs(lang: Lang, node: &str) -> String {
    lang.pick(
        format!("its inputs are read into the memory of `{node}`"),
        format!("正在将输入读入 `{node}` 的内存"),
    )
}

/// That nothing is left of what was begun, and why.
pub fn starts_cold(lang: Lang, reason: &str) -> String {
    lang.pick(
        format!("its program is started once it has devices, not early: {reason}"),
        format!("程序将在获得设备后启动，而不是提前启动：{reason}"),
    )
}
