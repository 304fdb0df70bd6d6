//! Taking secrets out of what people get to read.

/// A URL without its password: `postgres://user:***@host/db`. Other text is returned as it is.
#[must_use]
pub fn redact_url(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (main, query) = rest.split_once('?').map_or((rest, None), |(main, query)| (main, Some(query)));
    // The last @ that can end the user's part: an unescaped @ or / in a password must not let its tail through.
    let main = match main.rsplit_once('@') {
        Some((user, host)) => {
            let shown = user.split_once(':').map_or_else(|| user.to_owned(), |(name, _)| format!("{name}:***"));
            format!("{shown}@{host}")
        }
        None => main.to_owned(),
    };
    let query = query.map(|query| format!("?{}", query.split('&').map(redact_parameter).collect::<Vec<_>>().join("&")));
    // A question mark inside a password would have split the text before its @: hide all that may be password.
    if query.as_deref().is_some_and(|query| query.contains('@')) {
        return format!("{scheme}://***");
    }
    format!("{scheme}://{main}{}", query.unwrap_or_default())
}

/// Parameters whose values are nobody's secret.
const HARMLESS: [&str; 10] =
    ["application_name", "cache", "dbname", "host", "hostaddr", "mode", "port", "ssl-mode", "sslmode", "sslrootcert"];

fn redact_parameter(parameter: &str) -> String {
    match parameter.split_once('=') {
        Some((name, _)) if !HARMLESS.contains(&name) => format!("{name}=***"),
        _ => parameter.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: OPS-02
    #[test]
    fn no_part_of_a_password_is_left() {
        assert_eq!(
            redact_url("postgres://u:hunter2@h:5432/d?sslmode=require"),
            "postgres://u:***@h:5432/d?sslmode=require"
        );
        assert_eq!(redact_url("postgres://u@h/d"), "postgres://u@h/d");
        assert_eq!(redact_url("sqlite://taskhold.db"), "sqlite://taskhold.db");
        assert_eq!(redact_url("plain: text"), "plain: text");
        for url in [
            "postgres://u:hunter2@hunter2@h/d",
            "postgres://u:hun/hunter2@h/d",
            "postgres://u:a:hunter2@h/d",
            "postgres://h/d?password=hunter2&x=1",
            "postgres://h/d?sslpassword=hunter2",
            "postgres://h/d?pas%73word=hunter2",
            "postgres://h/d?unheard_of=hunter2",
            "mysql://u:hunter2@h/d",
            "postgres://u:a?hunter2@h/d",
            "postgres://u:a?b=hunter2@h/d",
        ] {
            assert!(!redact_url(url).contains("hunter2"), "{}", redact_url(url));
        }
    }
}
