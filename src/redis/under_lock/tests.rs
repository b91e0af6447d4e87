use super::*;
use std::panic::{catch_unwind, AssertUnwindSafe};

#[test]
fn a_value_in_use_cannot_be_used_again_and_is_free_after_a_panic() {
    let number = UnderLock::new(1);
    let again = catch_unwind(AssertUnwindSafe(|| number.with(|_| number.get())));
    assert!(again.is_err());
    let broken = catch_unwind(AssertUnwindSafe(|| {
        number.with(|number| {
            *number = 2;
            panic!("as a bug would");
        })
    }));
    assert!(broken.is_err());
    assert_eq!(number.get(), 2);
    assert_eq!(number.replace(3), 2);
    assert_eq!(number.get(), 3);
}

#[test]
fn each_load_has_a_value_of_its_own_and_none_exists_between_two() {
    static LIST: WhileLoaded<UnderLock<Vec<u8>>> = WhileLoaded::new();
    for _ in 0..2 {
        assert!(catch_unwind(|| LIST.get()).is_err());
        LIST.create(UnderLock::new(vec![7]));
        assert_eq!(LIST.get().replace(vec![8]), [7]);
        // SAFETY: nothing uses the value any more.
        unsafe { LIST.drop() };
    }
}
