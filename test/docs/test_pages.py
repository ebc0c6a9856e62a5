"""The commands of each page do what the page says."""

import pytest
from check_docs import pages_to_run
from documents import failures, servers_of


@pytest.mark.parametrize("page", pages_to_run(), ids=lambda page: page.name)
def test_page(page):
    assert any(block.expected is not None for block in page.blocks), "the page expects nothing"
    with servers_of(page) as (directory, servers):
        if None in servers:
            pytest.skip("this machine does not have the version of one of the servers")
        found = failures(page, servers, directory)
        assert not found, "\n\n".join(found)
