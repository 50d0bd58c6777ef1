"""The environment of the engine process."""

from __future__ import annotations

from models.hugepages import with_huge_pages


def test_the_wish_is_added_and_everything_else_stays() -> None:
    """Nothing was said before."""
    assert with_huge_pages({"PATH": "p"}) == {"PATH": "p", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def test_other_tunables_stay_in_front() -> None:
    """A colon separates them."""
    said = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}
    assert with_huge_pages(said)["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"


def test_what_the_user_has_said_about_huge_pages_holds() -> None:
    """Off is an answer too."""
    said = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    assert with_huge_pages(said) == said
