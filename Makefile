EXTENSION = weft
MODULE_big = weft
PGFILEDESC = "weft - parallel apply for logical replication"
# The folder of this file: the current one, unless Weft is built outside of its tree, with
# "make -f /path/to/Makefile".
tree := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
# The install script is the concatenation of its parts, in the order of their numbers.  That of an older version is in
# sql/released.  The script that updates from there consists of a check, the changes, and the parts that are new.
version := $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(tree)/weft.control)
install_script = sql/weft--$(version).sql
update_script = sql/weft--0.1.0--$(version).sql
parts = $(sort $(wildcard $(tree)/sql/[0-9][0-9]-*.sql))
new_parts = $(sort $(wildcard $(tree)/sql/1[3-9]-*.sql))
# PGXS puts the folder before each of these.
DATA = $(patsubst $(tree)/%,%,$(sort $(wildcard $(tree)/sql/released/*.sql)))
DATA_built = $(install_script) $(update_script)
OBJS = $(patsubst $(tree)/%.c,%.o,$(sort $(wildcard $(tree)/src/*.c $(tree)/src/*/*.c)))
PG_CPPFLAGS = -I$(srcdir)/src -I$(libpq_srcdir) -DWEFT_VERSION='"$(version)"'
PG_CFLAGS = -Wall -MMD -MP
SHLIB_LINK = $(libpq)
server_stamp = $(CURDIR)/weft.server
EXTRA_CLEAN = $(OBJS:.o=.d) $(server_stamp)

# "make installcheck" tests a running server (CONTRIBUTING.md says how it must be
# configured); TAP tests create servers of their own.
REGRESS = $(sort $(notdir $(basename $(wildcard $(tree)/test/regress/sql/*.sql))))
REGRESS_OPTS = --inputdir=$(srcdir)/test/regress --encoding=UTF8 --no-locale
ISOLATION = $(sort $(notdir $(basename $(wildcard $(tree)/test/isolation/specs/*.spec))))
ISOLATION_OPTS = --inputdir=$(srcdir)/test/isolation --encoding=UTF8 --no-locale
TAP_TESTS = 1
PROVE_TESTS ?= test/tap/*.pl

# These goals set up everything that they need, including the server, and therefore
# need no pg_config.  PG=17|18|19 selects the major version, PG_CONFIG=... an existing
# server, TESTS='test/tap/003*.pl' some of the tests.
tool_goals = demo demo-group bench docs dist indent check-packages \
	check check-static check-unit check-regress check-isolation check-ledger check-cli check-docs \
	check-monitoring \
	check-tap check-tap-streamed check-tap-native check-core \
	check-ddl-regress check-migrations check-upgrade

ifneq ($(filter-out $(tool_goals),$(or $(MAKECMDGOALS),all)),)

PG_CONFIG ?= pg_config
pg_version := $(shell $(PG_CONFIG) --version)
ifeq ($(shell expr '$(pg_version)' : 'PostgreSQL \([0-9]*\)' '>=' 17),0)
$(error Weft needs PostgreSQL 17 or later, but $(PG_CONFIG) belongs to $(or $(pg_version),no server). Name another: make PG_CONFIG=/path/to/pg_config)
endif

# make would find objects of a build in the tree, and take them for those of this build.
built_in_tree := $(if $(filter-out $(CURDIR),$(abspath $(tree))),$(wildcard $(tree)/weft.so $(OBJS:%=$(tree)/%)))
ifneq ($(and $(built_in_tree),$(filter-out clean,$(or $(MAKECMDGOALS),all))),)
$(error Weft has been built in $(tree). Before you build it elsewhere, run "make clean" there)
endif

# No function of Weft is called within a query plan, so bitcode would be useless.
override with_llvm = no

PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# After the include, which sets it.
PG_PROVE_FLAGS += -I $(abspath $(srcdir))/test/tap/lib
export with_icu enable_injection_points

$(install_script): $(parts) $(server_stamp) | $(CURDIR)/sql
	cat $(filter %.sql,$^) >$@

$(update_script): $(tree)/sql/02-library-version.sql $(tree)/sql/updates/0.1.0--$(version).sql $(new_parts) $(server_stamp) | $(CURDIR)/sql
	cat $(filter %.sql,$^) >$@

# Use LZ4 if the server does.  Debian's packages of the server do not include the
# header.
ifneq ($(filter -llz4,$(LIBS)),)
ifeq ($(shell $(CC) $(CPPFLAGS) -include lz4.h -E -x c /dev/null >/dev/null 2>&1 && echo found),found)
override CPPFLAGS += -DWEFT_LZ4
SHLIB_LINK += $(filter -llz4,$(LIBS))
else
$(warning There is no lz4.h (Debian: liblz4-dev), so Weft is built without compression)
endif
endif

# Outside of the tree, folders must be made.  Their names are absolute because make would find
# relative ones in the tree.
folders := $(addprefix $(CURDIR)/,sql $(sort $(patsubst %/,%,$(dir $(OBJS)))))
$(folders):
	mkdir -p $@

# What is built belongs to one build of the server and to one list of files: for another one, all is built again.  (make does
# not notice that a file is gone.)
server := $(pg_version) $(shell $(PG_CONFIG) --configure | cksum) $(shell echo '$(OBJS) $(parts)' | cksum)
.PHONY: always
always:
$(server_stamp): always
	@echo '$(server)' | cmp -s - $@ || echo '$(server)' >$@

# PGXS does not track which headers an object depends on; the compiler writes it
# into the .d files.  WEFT_VERSION is from weft.control.
$(OBJS): $(tree)/Makefile $(tree)/weft.control $(server_stamp) | $(folders)
-include $(OBJS:.o=.d)

endif

ifneq ($(filter $(tool_goals),$(MAKECMDGOALS)),)

.PHONY: $(tool_goals)

demo:
	@tools/setup.sh release python tools/demo.py

demo-group:
	@tools/setup.sh release python tools/demo_group.py

# What depends on the server's major version, and what hardly does.
CHECKS = unit regress isolation tap tap-streamed core
CHECKS_OF_ONE_MAJOR = static ledger cli docs monitoring tap-native

check:
	@tools/setup.sh assert python tools/run-check.py $(CHECKS_OF_ONE_MAJOR) $(CHECKS)

check-upgrade:
	@tools/check-upgrade.sh

# Only root can run this: it makes chroots of Debian.
check-packages:
	@tools/package-trial.sh $(SUITES)

$(filter-out check-upgrade check-packages,$(filter check-%,$(tool_goals))): check-%:
	@tools/setup.sh assert python tools/run-check.py $*

bench:
	@bench/run --json bench/results/small.json --charts bench/results/small

docs:
	@tools/build-docs.sh

# The source tarball and the archive for PGXN, from the last commit.
dist:
	@tools/make-dist.sh $(DIST)

indent: SHELL = /bin/bash
indent:
	@set -o pipefail; tools/setup.sh assert tools/indent.sh | patch -p1

endif
