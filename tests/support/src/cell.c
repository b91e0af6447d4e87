/* A module for tests that has the commands which its arguments name, and CL.THROTTLE if there are none. Each answers a text.
 * The few functions that it needs are declared here, as a module may. */
typedef struct Context Context;
typedef struct String String;

static int (*SetModuleAttribs)(Context *, const char *, int, int);
static int (*CreateCommand)(Context *, const char *, int (*)(Context *, String **, int), const char *, int, int, int);
static const char *(*StringPtrLen)(const String *, unsigned long *);
static int (*ReplyWithSimpleString)(Context *, const char *);

static int throttle(Context *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    return ReplyWithSimpleString(ctx, "another module");
}

int RedisModule_OnLoad(Context *ctx, String **argv, int argc) {
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    get("RedisModule_SetModuleAttribs", &SetModuleAttribs);
    get("RedisModule_CreateCommand", &CreateCommand);
    get("RedisModule_ReplyWithSimpleString", &ReplyWithSimpleString);
    get("RedisModule_StringPtrLen", &StringPtrLen);
    SetModuleAttribs(ctx, "cell", 1, 1);
    for (int at = 0; at < argc; at++) {
        if (CreateCommand(ctx, StringPtrLen(argv[at], 0), throttle, "write", 1, 1, 1)) return 1;
    }
    return argc ? 0 : CreateCommand(ctx, "cl.throttle", throttle, "write", 1, 1, 1);
}
