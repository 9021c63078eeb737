//! Settings of the server or the URL that others have made.

use tenure_sql::mysql::Options;

#[test]
fn no_part_of_a_password_is_shown() {
    for url in [
        "mysql://app:pa?s3cret@db/locks",
        "mysql://app:pa@s3cret@db/locks",
        "mysql://app:pa/s3cret@db/locks",
        "mysql://app:pa#s3cret@db/locks",
    ] {
        let shown = match Options::parse(url) {
            Ok(options) => format!("{options} {options:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("s3cret"), "{url}: {shown}");
    }
}
