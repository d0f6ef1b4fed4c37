//! Leaves out of a list what it does not take for something to hold: what differs in thirty steps mostly differs in two.

/// The shortest list found for which `holds` still answers yes, in at most `tries` questions.
pub async fn fewest<T: Clone>(
    mut found: Vec<T>,
    tries: &mut usize,
    mut holds: impl AsyncFnMut(&[T]) -> bool,
) -> Vec<T> {
    let mut size = (found.len() / 2).max(1);
    loop {
        let mut at = 0;
        while at < found.len() && *tries > 0 {
            let mut fewer = found.clone();
            fewer.drain(at..(at + size).min(found.len()));
            *tries -= 1;
            if holds(&fewer).await {
                found = fewer;
            } else {
                at += size;
            }
        }
        if size == 1 {
            return found;
        }
        size /= 2;
    }
}

#[tokio::test]
async fn only_what_it_takes_is_left() {
    let all: Vec<u32> = (0..100).collect();
    let left = fewest(all, &mut 1000, async |list| list.contains(&17) && list.contains(&71)).await;
    assert_eq!(left, [17, 71]);
}
