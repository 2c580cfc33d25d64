//! Who asked for a change, in a sentence.

use super::Lang;
use crate::report::RequestReport;

/// One request.
pub fn request(lang: Lang, request: &RequestReport) -> String {
    let RequestReport { at, what, .. } = request;
    let by = by(lang, request);
    match lang {
        Lang::En => format!("{} by {by} at {at}", done(what)),
        Lang::Zh => format!("{at} 由{by}{}", done_zh(what)),
    }
}

fn by(lang: Lang, request: &RequestReport) -> String {
    let who = match (&request.user, &request.token) {
        (Some(user), _) => lang.pick(format!("user `{user}`"), format!("用户 `{user}` ")),
        (None, Some(token)) => lang.pick(format!("token `{token}`"), format!("令牌 `{token}` ")),
        (None, None) => lang.pick("somebody".to_owned(), "他人".to_owned()),
    };
    match &request.address {
        Some(address) => {
            lang.pick(format!("{who} from {address}"), format!("{who}（来自 {address}）"))
        }
        None => who,
    }
}

fn done(what: &str) -> &str {
    match what {
        "submit" => "submitted",
        "hold" => "held",
        "release" => "released",
        "cancel" => "cancelled",
        "change" => "changed",
        "preempt" => "preempted",
        other => other,
    }
}

fn done_zh(what: &str) -> &str {
    match what {
        "submit" => "提交",
        "hold" => "暂停",
        "release" => "释放",
        "cancel" => "取消",
        "change" => "更改",
        "preempt" => "抢占",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_tokens_are_told_apart() {
        let row = |user: Option<&str>, token: Option<&str>, address: Option<&str>| RequestReport {
            at: "T".to_owned(),
            what: "cancel".to_owned(),
            token: token.map(str::to_owned),
            user: user.map(str::to_owned),
            address: address.map(str::to_owned),
        };
        let check = |row: &RequestReport, english: &str, chinese: &str| {
            assert_eq!(request(Lang::En, row), english);
            assert_eq!(request(Lang::Zh, row), chinese);
        };
        let user = row(Some("alice"), None, None);
        check(&user, "cancelled by user `alice` at T", "T 由用户 `alice` 取消");
        let token = row(None, Some("1a2b3c4d"), Some("10.0.0.7"));
        check(
            &token,
            "cancelled by token `1a2b3c4d` from 10.0.0.7 at T",
            "T 由令牌 `1a2b3c4d` （来自 10.0.0.7）取消",
        );
    }
}
