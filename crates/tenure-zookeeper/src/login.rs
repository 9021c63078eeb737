//! The login at a server: a user and a password, or neither.

use tenure::Error;
use tenure::store::Login;

/// Refuses what would log in as nobody, or as another.
pub(crate) fn check_login(Login { user, password }: Login) -> Result<Option<(String, String)>, Error> {
    let hint = "give both, or none of them";
    match (user, password) {
        (Some(_), None) => Err(Error::invalid("the store URL has a user and no password").with_hint(hint)),
        (None, Some(_)) => Err(Error::invalid("the store URL has a password and no user").with_hint(hint)),
        (Some(user), _) if user.contains(':') => {
            Err(Error::invalid("the user has a colon, and the digest scheme ends it there").with_hint("use another user"))
        }
        (user, password) => Ok(user.zip(password)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_of_a_user_and_a_password() {
        assert_eq!(check_login(Login::default()).unwrap(), None);
        assert!(check_login(Login::new("me", "secret")).unwrap().is_some());
        for (login, why) in
            [(Login::of_user("me"), "no password"), (Login::of_password("x"), "no user"), (Login::new("a:b", "c"), "colon")]
        {
            let error = check_login(login).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
